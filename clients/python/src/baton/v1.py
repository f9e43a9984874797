"""The schema package baton.v1: messages, enums and service stubs, under their own names."""

from baton._gen.baton.v1.agent_pb2 import *
from baton._gen.baton.v1.agent_service_pb2 import *
from baton._gen.baton.v1.agent_service_pb2_grpc import AgentServiceStub as AgentServiceStub
from baton._gen.baton.v1.broker_service_pb2 import *
from baton._gen.baton.v1.broker_service_pb2_grpc import BrokerServiceStub as BrokerServiceStub
from baton._gen.baton.v1.context_pb2 import *
from baton._gen.baton.v1.custody_pb2 import *
from baton._gen.baton.v1.envelope_pb2 import *
from baton._gen.baton.v1.error_pb2 import *
from baton._gen.baton.v1.handoff_pb2 import *
from baton._gen.baton.v1.handoff_service_pb2 import *
from baton._gen.baton.v1.handoff_service_pb2_grpc import HandoffServiceStub as HandoffServiceStub
from baton._gen.baton.v1.negotiation_pb2 import *
from baton._gen.baton.v1.routing_pb2 import *
from baton._gen.baton.v1.routing_service_pb2 import *
from baton._gen.baton.v1.routing_service_pb2_grpc import RoutingServiceStub as RoutingServiceStub
from baton._gen.baton.v1.task_pb2 import *
from baton._gen.baton.v1.task_service_pb2 import *
from baton._gen.baton.v1.task_service_pb2_grpc import TaskServiceStub as TaskServiceStub
from baton._gen.baton.v1.workspace_pb2 import *
from baton._gen.baton.v1.workspace_service_pb2 import *
from baton._gen.baton.v1.workspace_service_pb2_grpc import WorkspaceServiceStub as WorkspaceServiceStub
