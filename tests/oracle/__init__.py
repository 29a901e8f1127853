"""Makers of tiny checkpoints and of their reference outputs, from torch and transformers in fp32."""
