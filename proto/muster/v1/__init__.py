"""muster.v1: the .proto files and, beside them, the code generated from them (`make proto`)."""
