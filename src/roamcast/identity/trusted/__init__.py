"""The trusted node: it knows who somebody is, and never where they are or what is said to them.

In: subjects with the public keys of their next vids, sealed mail addressed to vids, people's reach
rules. Out: pools of credentials without a name, mail for each person once, counts. The machines are
parts behind a router (`node.py`); docs/trust.md is the whole story.
"""
