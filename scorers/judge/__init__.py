"""A model that grades responses: prompt, reading of the reply, combination of verdicts, agreement,
calibration."""
