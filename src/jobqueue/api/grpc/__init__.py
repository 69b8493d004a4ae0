"""Contains the gRPC API's server (``server.GrpcFace``) and client (``remote.GrpcBackend``)."""
