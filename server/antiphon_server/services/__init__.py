"""The gRPC services: each checks a request, calls what does the work and returns its answer."""
