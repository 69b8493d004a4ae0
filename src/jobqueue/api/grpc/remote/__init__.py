"""Call a backend through a gRPC server, for clients, operators and workers in other processes."""

from jobqueue.api.grpc.remote.backend import GrpcBackend

__all__ = ["GrpcBackend"]
