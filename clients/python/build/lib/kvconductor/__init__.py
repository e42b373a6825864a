"""Asks a Conductor which inference engine caches which prefix of a prompt."""

from ._client import AsyncClient, Client
from ._types import ConductorError, QueryArguments, QueryOptions, Rank, Registration, RoutedAnswer, RoutedArguments, RoutedOptions, Row, Source

__all__ = [
    "AsyncClient", "Client", "ConductorError", "QueryArguments", "QueryOptions", "Rank", "Registration",
    "RoutedAnswer", "RoutedArguments", "RoutedOptions", "Row", "Source",
]
