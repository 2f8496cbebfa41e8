"""Settings of a service: one TOML file, read into frozen sections; errors name the line."""
