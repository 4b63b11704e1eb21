"""Model clients. Importing this loads nothing heavy: `providers.create_embedder` imports a client when asked."""
