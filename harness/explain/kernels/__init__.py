"""What a framework computed: kernels, fused units, layers."""
