"""Where do people go? Lazy, seeded streams of moves in time order.

In: places or an area, a seeded `random.Random`, and a model's parameters. Out: an iterator of
`Move(time_us, person, place or point)`, each person's first move saying where they start. A driver
pulls one move at a time, or all up to a moment, through `moves.Feed`.
"""
