"""The archive for analysts: a Spark data source, SQL functions, and the questions people ask."""
