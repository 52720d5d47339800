import { flushSync, mount, unmount } from 'svelte'
import { afterEach, expect, it, vi } from 'vitest'
import { NOW } from '../testing/samples'
import { toasts } from '../ui/toasts.svelte'
import WatchForm from './WatchForm.svelte'

let drawn: ReturnType<typeof mount> | undefined

afterEach(() => {
  if (drawn !== undefined) void unmount(drawn)
  document.body.replaceChildren()
  for (const { id } of toasts.shown) toasts.dismiss(id)
  vi.unstubAllGlobals()
})

async function settle(): Promise<void> {
  await new Promise((done) => setTimeout(done, 0))
  flushSync()
}

it('a request that was removed by mistake comes back', async () => {
  const watch = { id: 7, description: '2 GPUs', created_at: NOW, expires_at: NOW + 3600, fired_at: null, found: [], is_sent: true, user: 'ada', wanted: { gpus: 2, model: 'H200' } }
  const asked: unknown[] = []
  vi.stubGlobal('fetch', async (url: string, { method, body }: { method: string; body?: string }) => {
    asked.push([method, url, body === undefined ? null : JSON.parse(body)])
    return new Response(JSON.stringify(method === 'GET' ? { watches: [watch] } : watch), { status: 200 })
  })
  drawn = mount(WatchForm, { target: document.body, props: { now: NOW, onClose: () => {} } })
  await settle()
  expect([...document.querySelectorAll('label.required')].map(({ textContent }) => textContent)).toEqual(['Number of GPUs'])
  document.querySelector<HTMLElement>('[aria-label="Remove 2 GPUs"]')?.click()
  await settle()
  expect(document.querySelector('dialog .toast')?.textContent).toContain('Removed: 2 GPUs')
  document.querySelector<HTMLElement>('.toast .undo')?.click()
  await settle()
  expect(asked.filter((each) => (each as string[])[0] !== 'GET')).toEqual([
    ['DELETE', 'api/v1/watches/7', null],
    ['POST', 'api/v1/watches', { gpus: 2, model: 'H200', expire_seconds: 3600 }],
  ])
})
