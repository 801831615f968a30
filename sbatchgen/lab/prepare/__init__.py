"""What a job needs, made before it holds GPUs."""
