"""Recording and alert rules: rendered from the jsonnet mixin."""
