"""Asks a Conductor which inference engine caches which prefix of a prompt."""

from ._client import AsyncClient, Client
from ._types import (
    Candidate, Candidates, CandidatesOptions, ConductorError, Instance, QueryArguments, QueryOptions, Rank, Registration, RoutedAnswer,
    RoutedArguments, RoutedOptions, Row, Source,
)

__all__ = [
    "AsyncClient", "Candidate", "Candidates", "CandidatesOptions", "Client", "ConductorError", "Instance", "QueryArguments", "QueryOptions", "Rank", "Registration",
    "RoutedAnswer", "RoutedArguments", "RoutedOptions", "Row", "Source",
]
