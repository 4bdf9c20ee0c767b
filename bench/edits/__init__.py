"""What `bench/edits.py` needs: the edits (`_table`, `_forward`), how they are made (`_rewrite`), and six programs in the zoo's form."""
