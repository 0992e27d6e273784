"""What goes wrong on a machine: clocks that jump, full disks, no descriptors, no names."""
