"""What runs inside a worker's child: build, output check, timing policy; and the host-wide rule of quiet timing."""
