"""The schema package baton.v1: messages, enums and service stubs, under their own names."""

from baton._gen.baton.v1.agent_pb2 import *
from baton._gen.baton.v1.agent_service_pb2 import *
from baton._gen.baton.v1.agent_service_pb2_grpc import AgentServiceStub as AgentServiceStub
from baton._gen.baton.v1.audit_pb2 import *
from baton._gen.baton.v1.audit_service_pb2 import *
from baton._gen.baton.v1.audit_service_pb2_grpc import AuditServiceStub as AuditServiceStub
from baton._gen.baton.v1.blob_service_pb2 import *
from baton._gen.baton.v1.blob_service_pb2_grpc import BlobServiceStub as BlobServiceStub
from baton._gen.baton.v1.broker_service_pb2 import *
from baton._gen.baton.v1.broker_service_pb2_grpc import BrokerServiceStub as BrokerServiceStub
from baton._gen.baton.v1.context_pb2 import *
from baton._gen.baton.v1.context_service_pb2 import *
from baton._gen.baton.v1.context_service_pb2_grpc import ContextServiceStub as ContextServiceStub
from baton._gen.baton.v1.custody_pb2 import *
from baton._gen.baton.v1.dead_letter_pb2 import *
from baton._gen.baton.v1.dead_letter_service_pb2 import *
from baton._gen.baton.v1.dead_letter_service_pb2_grpc import DeadLetterServiceStub as DeadLetterServiceStub
from baton._gen.baton.v1.envelope_pb2 import *
from baton._gen.baton.v1.error_pb2 import *
from baton._gen.baton.v1.handoff_pb2 import *
from baton._gen.baton.v1.handoff_service_pb2 import *
from baton._gen.baton.v1.handoff_service_pb2_grpc import HandoffServiceStub as HandoffServiceStub
from baton._gen.baton.v1.negotiation_pb2 import *
from baton._gen.baton.v1.negotiation_service_pb2 import *
from baton._gen.baton.v1.negotiation_service_pb2_grpc import NegotiationServiceStub as NegotiationServiceStub
from baton._gen.baton.v1.plan_pb2 import *
from baton._gen.baton.v1.plan_service_pb2 import *
from baton._gen.baton.v1.plan_service_pb2_grpc import PlanServiceStub as PlanServiceStub
from baton._gen.baton.v1.registry_service_pb2 import *
from baton._gen.baton.v1.registry_service_pb2_grpc import RegistryServiceStub as RegistryServiceStub
from baton._gen.baton.v1.routing_pb2 import *
from baton._gen.baton.v1.routing_service_pb2 import *
from baton._gen.baton.v1.routing_service_pb2_grpc import RoutingServiceStub as RoutingServiceStub
from baton._gen.baton.v1.schema_service_pb2 import *
from baton._gen.baton.v1.schema_service_pb2_grpc import SchemaServiceStub as SchemaServiceStub
from baton._gen.baton.v1.task_pb2 import *
from baton._gen.baton.v1.task_service_pb2 import *
from baton._gen.baton.v1.task_service_pb2_grpc import TaskServiceStub as TaskServiceStub
from baton._gen.baton.v1.thread_pb2 import *
from baton._gen.baton.v1.thread_service_pb2 import *
from baton._gen.baton.v1.thread_service_pb2_grpc import ThreadServiceStub as ThreadServiceStub
from baton._gen.baton.v1.workspace_pb2 import *
from baton._gen.baton.v1.workspace_service_pb2 import *
from baton._gen.baton.v1.workspace_service_pb2_grpc import WorkspaceServiceStub as WorkspaceServiceStub
