/** Jobs of schedulers: those that had GPUs, and the report of one. */
import { request, type Answer } from './request'
import type { components } from './schema'

type Schemas = components['schemas']

export type JobSummary = Schemas['JobSummary']
export type JobReport = Schemas['JobReport']
export type JobGpu = Schemas['JobGpu']

export interface JobsQuestion {
  user?: string
  state?: 'running' | 'ended'
  before?: number
  limit?: number
}

export const listJobs = (query: JobsQuestion, signal?: AbortSignal): Promise<Answer<Schemas['JobList']>> => request('get', '/api/v1/jobs', { query, signal })

/** The newest start first; the id of an array has its tasks. A pod is named `namespace/name`. */
export function readJob(name: string, signal?: AbortSignal): Promise<Answer<Schemas['JobReports']>> {
  const [namespace = '', job] = name.split(/\/(.*)/s)
  return job === undefined ? request('get', '/api/v1/jobs/{job}', { path: { job: name }, signal }) : request('get', '/api/v1/jobs/{namespace}/{job}', { path: { namespace, job }, signal })
}
