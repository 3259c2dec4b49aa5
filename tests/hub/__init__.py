"""A stand-in for the Hugging Face hub: two local servers, faults on demand, a log of requests."""

from tests.hub.faults import Fault, Logged
from tests.hub.server import StandInHub

__all__ = ["Fault", "Logged", "StandInHub"]
