"""The gRPC face (``server.GrpcFace``) and its remote client (``remote.GrpcBackend``)."""
