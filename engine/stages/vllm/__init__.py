"""Language models through vLLM, in a process of their own."""
