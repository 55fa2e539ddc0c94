"""What outputs must look like: from the wire to a grammar that the engine enforces exactly."""
