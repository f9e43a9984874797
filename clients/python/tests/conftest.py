"""The broker of each test."""

import pytest
from brokers import RealBroker


@pytest.fixture
async def broker(tmp_path):
    broker = RealBroker(tmp_path)
    await broker.start()
    yield broker
    broker.end()
