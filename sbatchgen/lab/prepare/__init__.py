"""Data and images, prepared before a job holds GPUs."""
