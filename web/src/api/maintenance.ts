/** Hosts and GPUs that are drained, now or later; notes on hosts. */
import { request, type Answer } from './request'
import type { components } from './schema'

type Schemas = components['schemas']

/** What is shown of a window at its host and GPUs. */
export type Maintenance = Schemas['Maintenance']
export type MaintenanceWindow = Schemas['ShownMaintenance']
export type NewMaintenance = Schemas['NewMaintenance']
export type MaintenanceChange = Schemas['MaintenanceChange']

export const readMaintenance = (signal?: AbortSignal): Promise<Answer<Schemas['MaintenanceList']>> => request('get', '/api/v1/maintenance', { signal })
export const drain = (window: NewMaintenance): Promise<Answer<MaintenanceChange>> => request('post', '/api/v1/maintenance', { body: window })
export const endMaintenance = (id: number): Promise<Answer<MaintenanceWindow>> => request('delete', '/api/v1/maintenance/{number}', { path: { number: id } })
/** An empty text removes it. */
export const writeNote = (host: string, text: string): Promise<Answer<Schemas['NoteAnswer']>> => request('put', '/api/v1/hosts/{host}/note', { path: { host }, body: { text } })
