"""Define tasks: functions that producers submit jobs for, and that workers execute."""
