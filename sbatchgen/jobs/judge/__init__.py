"""The rules for resolved jobs, their trainers and profiles, and the facts that these rules judge."""
