# %% [markdown]
"""# An archive for analysts

A notebook in the percent format: Jupyter, VS Code and Spyder run it cell by cell, and so does
`python examples/analysts.py ARCHIVE`. It needs a `SparkSession` named `spark` and an `archive`; it
makes the session itself if there is none. A Spark Connect session (`sc://…`) does as well.
"""

# %%
import sys

from roamcast.pipeline import (
    contexts,
    define_functions,
    dwell,
    entries,
    exposure,
    flows,
    look_up,
    occupancy,
    register,
)

if "spark" not in globals():
    from roamcast.pipeline.spark.session import start

    spark, archive = start(), sys.argv[1]

# %% [markdown]
# ## Rows, as a DataFrame and as SQL

# %%
register(spark)
define_functions(spark)
seen = contexts(spark, archive)
seen.createOrReplaceTempView("contexts")
total = seen.count()
by_place = spark.sql(
    "SELECT place, count(*) AS visits FROM contexts "
    "WHERE place_within(place, 'campus') GROUP BY place ORDER BY visits DESC, place"
)
by_place.show(5, truncate=False)

# %% [markdown]
# ## A filter of the service, exact

# %%
buses = contexts(spark, archive, filter="kind = 'bus' AND within(place, 'campus')")
buses.groupBy("place").count().show(5, truncate=False)

# %% [markdown]
# ## Questions people ask

# %%
busy = occupancy(seen, level=2, k=3)
stays = dwell(seen, level=2, k=3)
doors = entries(seen, level=2, k=3)
moves = flows(seen, level=2, k=1)
for table in (busy, stays, doors, moves):
    table.show(5, truncate=False)

# %% [markdown]
# ## Whom do messages reach, and who met them?

# %%
reached = look_up(spark, archive, {"campus": "within(place, 'campus/b1')", "ill": "ill = true"})
reached.groupBy("id").count().show()
met = exposure(seen, of=reached.where("id = 'ill'").limit(3), minutes=30, level=2)
met.show(5)

# %%
answers = {
    "total": total,
    "by_place": by_place.count(),
    "buses": buses.count(),
    "busy": busy.count(),
    "stays": stays.count(),
    "doors": doors.count(),
    "moves": moves.count(),
    "reached": reached.count(),
}
