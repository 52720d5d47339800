import { mount } from 'svelte'
import './app/app.css'
import App from './app/App.svelte'

const target = document.getElementById('app')
if (target === null) throw new Error('index.html has no #app')
target.replaceChildren()
mount(App, { target })
