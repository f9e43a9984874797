/** The schema package baton.v1: messages, enums and services, under their own names. */
export * from "./gen/baton/v1/agent_pb.js";
export * from "./gen/baton/v1/agent_service_pb.js";
export * from "./gen/baton/v1/broker_service_pb.js";
export * from "./gen/baton/v1/context_pb.js";
export * from "./gen/baton/v1/custody_pb.js";
export * from "./gen/baton/v1/dead_letter_pb.js";
export * from "./gen/baton/v1/dead_letter_service_pb.js";
export * from "./gen/baton/v1/envelope_pb.js";
export * from "./gen/baton/v1/error_pb.js";
export * from "./gen/baton/v1/handoff_pb.js";
export * from "./gen/baton/v1/handoff_service_pb.js";
export * from "./gen/baton/v1/negotiation_pb.js";
export * from "./gen/baton/v1/task_pb.js";
export * from "./gen/baton/v1/task_service_pb.js";
export * from "./gen/baton/v1/audit_pb.js";
export * from "./gen/baton/v1/audit_service_pb.js";
