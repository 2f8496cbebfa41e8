"""What a person can type: one module per command or group, each with `register(app)`.

Modules here import the rest of the house only inside the functions, so that `roamcast --help`
starts fast (docs/decisions/0002).
"""
