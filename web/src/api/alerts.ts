/** What is wrong: acknowledging it, and sending no notifications of it for a while. */
import { request, type Answer } from './request'
import type { components } from './schema'

type Schemas = components['schemas']

export type Alert = Schemas['Alert']
export type AlertCounts = Schemas['AlertCounts']
export type FailedAlert = Schemas['FailedAlert']
export type Mute = Schemas['Mute']
export type NewMute = Schemas['NewMute']

/** The most that one answer holds, and one request acknowledges. */
export const MOST_ALERTS = 1000

/** Whether it needs attention, as the hub counts it. */
export function isOpen({ severity, state, muted_by }: Alert): boolean {
  return severity !== 'info' && state === 'firing' && muted_by === null
}

export const readAlerts = (signal?: AbortSignal): Promise<Answer<Schemas['AlertList']>> => request('get', '/api/v1/alerts', { query: { limit: MOST_ALERTS }, signal })
export const acknowledge = (ids: string[]): Promise<Answer<Schemas['AcknowledgedAlerts']>> => request('post', '/api/v1/alerts/acknowledge', { body: { ids } })
/** Those that are one's own. */
export const unacknowledge = (ids: string[]): Promise<Answer<Schemas['AlertList']>> => request('post', '/api/v1/alerts/unacknowledge', { body: { ids } })
export const readMutes = (signal?: AbortSignal): Promise<Answer<Schemas['MuteList']>> => request('get', '/api/v1/mutes', { signal })
export const createMute = (mute: NewMute): Promise<Answer<Mute>> => request('post', '/api/v1/mutes', { body: mute })
export const endMute = (id: string): Promise<Answer<Mute>> => request('delete', '/api/v1/mutes/{key}', { path: { key: id } })
