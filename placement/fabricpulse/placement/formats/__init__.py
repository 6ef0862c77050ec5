"""An order as the files and commands of launchers and schedulers: Slurm, Open MPI, Kubernetes. Pure."""
