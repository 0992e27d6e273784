"""A daemon of several processes: any of them killed or stopped at any moment, under load."""
