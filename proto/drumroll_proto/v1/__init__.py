"""Generated gRPC and protobuf code; `make proto` writes it."""
