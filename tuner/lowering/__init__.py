"""What happens to a scheduled function before LLVM sees it: elementary functions, loops that LLVM gets wrong."""
