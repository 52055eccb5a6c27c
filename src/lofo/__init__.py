"""lofo: reinforcement learning that forgets locally."""
