"""Casts: messages to everybody whose context satisfies a filter, past, present or future (TCC).

In: casts of this broker's users and of its neighbours, what the map shows, what look-ups find.
Out: casts for neighbours, look-ups, and mail for trusted nodes.
"""
