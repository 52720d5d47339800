/** Who waits for GPUs (`gpudeck wait`). */
import { request, type Answer } from './request'
import type { components } from './schema'

type Schemas = components['schemas']

export type QueuePosition = Schemas['QueuePosition']
export type GpuRequest = Schemas['GpuRequest']

export const readQueue = (signal?: AbortSignal): Promise<Answer<Schemas['QueueList']>> => request('get', '/api/v1/queue', { signal })
