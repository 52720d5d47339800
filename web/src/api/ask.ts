/** Asking the owners of an idle GPU whether they still need it. */
import { request, type Answer } from './request'
import type { components } from './schema'

type Schemas = components['schemas']

export type AskedOwners = Schemas['AskedOwners']

export const askOwner = (host: string, gpu: string, message: string): Promise<Answer<AskedOwners>> => request('post', '/api/v1/ask', { body: { host, gpu, message } })
