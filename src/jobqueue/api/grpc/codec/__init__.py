"""Between domain objects and protobuf, in both directions; used by servicers and remote clients."""
