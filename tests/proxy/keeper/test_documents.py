"""The tests of documents, with a keeper behind a worker: this folder's `harness` is used."""

from __future__ import annotations

from tests.proxy.test_documents import TestDocuments, TestVisibility, site

__all__ = ["TestDocuments", "TestVisibility", "site"]
