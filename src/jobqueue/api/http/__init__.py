"""The HTTP face: decode, call the backend, encode."""

from jobqueue.api.http.app import create_app
from jobqueue.api.http.face import HttpFace
from jobqueue.api.http.settings import HttpSettings

__all__ = ["HttpFace", "HttpSettings", "create_app"]
