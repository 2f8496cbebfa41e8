"""Mobility models: lazy, seeded streams of moves in time order.

In: places or an area, a seeded `random.Random`, and a model's parameters. Out: an iterator of
`Move(time_us, person, place or point)`; a person's first move is where they start. A driver pulls
one move at a time, or all up to a moment, through `moves.MoveFeed`.
"""
