"""Which sizes and static fields may differ, and what follows them."""
