"""A fault in a lift costs a user readability only; here it is an error."""

import os

os.environ["UNTRACE_STRICT"] = "1"
