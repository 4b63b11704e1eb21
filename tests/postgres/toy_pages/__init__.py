"""The toy catalogue's templates and assets."""
