"""What those need who keep profiles: `python -m tools.NAME`, in a checkout."""
